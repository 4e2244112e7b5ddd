"""What tests share: databases and virtual hosts of their own, a relay that breaks lines, fleet processes, waiting."""
