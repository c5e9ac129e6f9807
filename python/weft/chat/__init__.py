"""Chats: from messages to a prompt. Every dialect that takes messages names this, and this names no dialect."""
