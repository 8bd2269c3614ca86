"""The record, proved."""
