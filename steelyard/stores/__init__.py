"""Where client models live: in memory, or in safetensors files."""
