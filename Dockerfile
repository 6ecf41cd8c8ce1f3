# A small image for Kubernetes and other container runtimes: `docker build --tag tokenmill .`
FROM python:3.13-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python -m venv /opt/tokenmill && /opt/tokenmill/bin/pip install --no-cache-dir ".[all]"

FROM python:3.13-slim
COPY --from=build /opt/tokenmill /opt/tokenmill
ENV PATH=/opt/tokenmill/bin:$PATH HOME=/tmp
# Any user works: the image writes nowhere but to the volumes that it is given, and to /tmp.
USER 1000:1000
WORKDIR /data
ENTRYPOINT ["tokenmill"]
CMD ["--help"]
