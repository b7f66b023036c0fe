"""Stores of client models: in memory, or in safetensors files."""
