"""The simulator: federated training on one machine, deterministic and resumable."""
