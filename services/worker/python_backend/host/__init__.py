"""The worker's side: starts models' processes and speaks to them."""
