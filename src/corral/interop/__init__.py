"""Adapters to other libraries."""
