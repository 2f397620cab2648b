"""The suite `serve` of `cacheir benchmark`: load on any server that speaks OpenAI's API."""
