"""The settings of the commands: YAML groups, and the schema that checks them."""
