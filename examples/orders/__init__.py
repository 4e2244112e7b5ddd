"""An order service: the smallest whole fleet. `handlers.py` is its code, `fleet.toml` its configuration."""
