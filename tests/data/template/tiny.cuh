#pragma once
#include "types.cuh"
#define TINY 1.0f
