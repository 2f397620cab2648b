"""How far the answers of one model are from those of another, and which part of the model makes it so."""
