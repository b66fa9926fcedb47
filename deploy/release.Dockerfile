# The image of a release: the static program that was built before, on a base with nothing but certificates. Its context has a folder for
# each platform, amd64/headrace and arm64/headrace, and an empty one, data. Without a release, deploy/Dockerfile builds the program from source.
FROM gcr.io/distroless/static-debian12:nonroot
ARG TARGETARCH
COPY ${TARGETARCH}/headrace /usr/local/bin/headrace
# A volume begins as what is here: its owner's alone.
COPY --chown=65532:65532 --chmod=0700 data /var/lib/headrace
VOLUME /var/lib/headrace
EXPOSE 8080 8081 9090
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/headrace"]
CMD ["up", "--data-dir", "/var/lib/headrace", "--listen", "0.0.0.0:8080", "--admin-listen", "0.0.0.0:8081", "--metrics-listen", "0.0.0.0:9090"]
