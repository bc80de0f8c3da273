"""The backends of `SessionStore`, one file each; `testing.check_session_store` holds them to one contract."""
