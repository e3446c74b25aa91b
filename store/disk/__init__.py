"""The file layer: files and their lock, the room on their disk, and checks of LMDB's files.

Everything that keeps data may import this room, the controllers too. It imports `store.base` alone, and knows neither
frames nor records.
"""
