"""Tests, one folder per package of tokenmill; `support` holds what they share."""
