"""FedAWA on handwritten digits, with Flower."""
