"""A model behind OpenAI's and Anthropic's routes: what was trained, for everybody who has a client."""
