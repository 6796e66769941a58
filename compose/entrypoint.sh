#!/bin/sh
# Starts one of Spark's executors, as Spark asks for it with `executor` and variables on Kubernetes; else the command that is given.
set -eu
[ "${1:-}" = executor ] || exec "$@"

home=${SPARK_HOME:-$(python3 -c 'from importlib.util import find_spec; print(find_spec("pyspark").submodule_search_locations[0])')}
classes="${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$home/jars/*:/opt/tiercel/conf"

# SPARK_JAVA_OPT_0, _1, … are one option each, which may have spaces.
set --
number=0
while eval "[ -n \"\${SPARK_JAVA_OPT_$number+given}\" ]"; do
    eval "set -- \"\$@\" \"\$SPARK_JAVA_OPT_$number\""
    number=$((number + 1))
done

# Executors write into their working folder, which nothing else needs to be writable for.
cd "${HOME:-/tmp}"
exec java "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classes" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
