"""Players on many machines: episodes are handed out to Ray actors, and again where one is lost."""
