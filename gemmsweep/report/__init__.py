"""What a person reads, and what other tools read: tables, sentences, charts, report formats and exports."""
