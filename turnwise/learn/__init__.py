"""Learning: from groups of episodes to optimiser steps."""
