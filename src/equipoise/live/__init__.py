"""Replays a trace against a real engine, policy by policy, and keeps what was measured. Needs the extra ``serve``."""
