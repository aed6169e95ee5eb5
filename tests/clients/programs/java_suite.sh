#!/bin/sh
# The Java client's suite with Debian's jars. ``java_suite.sh build DIRECTORY`` compiles it; DIRECTORY has source/ and
# rabbitmq-codegen/. ``java_suite.sh run REPORT CTL`` runs it in source/, which reports TAP; CTL is the server's
# rabbitmqctl.
#
# Its functional and server tests run, without those that evaluate Erlang in the server, and one that never ends.
set -e

NOT_RUN='Bug19219Test|BlockedConnection|ChannelLimitNegotiation|LoopbackUsers|MemoryAlarms'

jars=
for jar in slf4j-api metrics-core junit-jupiter-api junit-jupiter-params junit-jupiter-engine \
  junit-platform-commons junit-platform-suite-api junit-platform-engine junit-platform-launcher \
  junit-platform-reporting junit-platform-console opentest4j opentest4j-reporting-events apiguardian-api picocli \
  univocity-parsers assertj-core mockito-core byte-buddy byte-buddy-agent objenesis hamcrest logback-classic \
  logback-core; do
  jars="$jars:/usr/share/java/$jar.jar"
done

case $1 in
build)
  listener=$(realpath "$(dirname "$0")/TapListener.java")
  cd "$2/source"
  client=generated/com/rabbitmq/client
  mkdir -p $client/impl
  export PYTHONPATH=../rabbitmq-codegen
  python3 codegen.py header $PYTHONPATH/amqp-rabbitmq-0.9.1.json $client/AMQP.java
  python3 codegen.py body $PYTHONPATH/amqp-rabbitmq-0.9.1.json $client/impl/AMQImpl.java
  mkdir -p classes/META-INF/services
  find src/test/java/com/rabbitmq/client/test/functional src/test/java/com/rabbitmq/client/test/server \
    -name '*.java' ! -name '*TestSuite.java' >sources
  javac -nowarn -encoding UTF-8 -proc:none -d classes -cp "$jars" \
    -sourcepath src/main/java:generated:src/test/java @sources "$listener"
  cp -r src/main/resources/. src/test/resources/logback-test.xml classes
  echo TapListener >classes/META-INF/services/org.junit.platform.launcher.TestExecutionListener
  ;;
run)
  exec java -Dreport="$2" -Drabbitmqctl.bin="$3" -Dbroker.hostname=localhost -Dbroker.port=5672 \
    -Dtest-broker.A.nodename=node -Djunit.jupiter.execution.timeout.testable.method.default=5m \
    -Djunit.jupiter.execution.timeout.thread.mode.default=SEPARATE_THREAD \
    -cp "classes$jars" org.junit.platform.console.ConsoleLauncher --disable-banner --details=tree \
    --disable-ansi-colors --include-engine=junit-jupiter --include-classname='.*' \
    --include-package=com.rabbitmq.client.test.functional --include-package=com.rabbitmq.client.test.server \
    --exclude-classname=".*\.($NOT_RUN)" --scan-classpath=classes
  ;;
esac
