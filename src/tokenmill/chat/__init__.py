"""Conversations to text: chat templates rendered in a sandbox, and the bytes that are trained on. Knows no stores."""
