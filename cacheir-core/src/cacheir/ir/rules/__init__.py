"""The rules of the IR, one file for each kind; ``cacheir.ir.verify`` runs them all."""
