#!/bin/sh
# `docker run tarn --appendfsync always` and `docker run tarn /etc/tarn.conf` mean the server; other words are a command.
set -e
case "${1-}" in
    '' | -* | *.conf) set -- tarn "$@" ;;
esac
exec "$@"
