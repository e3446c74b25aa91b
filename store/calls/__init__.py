"""The calls of a `LocalStore`, by what they are about."""
