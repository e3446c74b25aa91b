#!/bin/sh
# Exits 0 when there is a Java runtime that Spark runs on: JAVA_HOME's, the one on PATH, or one of /usr/lib/jvm.
# Else it says in one line what to install, and exits 1.
for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" java /usr/lib/jvm/*/bin/java; do
    [ -n "$java" ] || continue
    found=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    if [ "${found:-0}" -ge 17 ]; then
        exit 0
    fi
done
echo "Spark is left out: it needs a Java runtime 17 or newer (apt-get install openjdk-17-jre-headless)" >&2
exit 1
