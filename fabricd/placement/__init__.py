"""Reads what others have written of where nodes stand: schedulers, Kubernetes, cloud providers. Text in, model out."""
