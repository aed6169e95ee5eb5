#!/bin/sh
# The Java client's suite with Debian's jars. ``java_suite.sh build DIRECTORY`` compiles it; DIRECTORY has source/ and
# rabbitmq-codegen/. ``java_suite.sh run REPORT CTL`` runs it in source/, which reports TAP; CTL is the server's
# rabbitmqctl.
#
# Left out: what needs libraries, or versions of them, that Debian 12 does not package (micrometer, opentelemetry,
# netcrusher; Jackson, Mockito); the tests of TLS; those that evaluate Erlang in the server; and one that never ends.
set -e

UNCOMPILED='Micrometer|OpenTelemetry|Jackson|OAuth2|Credentials.*Test|MetricsCollectorTest|DefaultRetryHandlerTest|'
UNCOMPILED="$UNCOMPILED/ConnectionTest|FrameBuilderTest|TestSuite|AmqpClientTestExtension|/ssl/"
NOT_RUN='Bug19219Test|BlockedConnection|ChannelLimitNegotiation|LoopbackUsers|MemoryAlarms'

jars=
for jar in slf4j-api metrics-core gson junit-jupiter-api junit-jupiter-params junit-jupiter-engine \
  junit-platform-commons junit-platform-suite-api junit-platform-engine junit-platform-launcher \
  junit-platform-reporting junit-platform-console opentest4j opentest4j-reporting-events apiguardian-api picocli \
  univocity-parsers assertj-core mockito-core byte-buddy byte-buddy-agent objenesis hamcrest logback-classic \
  logback-core; do
  jars="$jars:/usr/share/java/$jar.jar"
done

compile() { # OUTPUT CLASSPATH DIRECTORY...: all sources below the directories that Debian's jars can compile
  output=$1 classpath=$2
  shift 2
  find "$@" -name '*.java' | grep -v -E "$UNCOMPILED" >sources
  javac -nowarn -encoding UTF-8 -proc:none -d "$output" -cp "$classpath" @sources
}

case $1 in
build)
  listener=$(realpath "$(dirname "$0")/TapListener.java")
  cd "$2/source"
  client=generated/com/rabbitmq/client
  mkdir -p $client/impl
  export PYTHONPATH=../rabbitmq-codegen
  python3 codegen.py header $PYTHONPATH/amqp-rabbitmq-0.9.1.json $client/AMQP.java
  python3 codegen.py body $PYTHONPATH/amqp-rabbitmq-0.9.1.json $client/impl/AMQImpl.java
  compile classes/main "$jars" src/main/java generated
  compile classes/test "classes/main$jars" src/test/java
  javac -d classes/test -cp "$jars" "$listener"
  mkdir -p classes/test/META-INF/services
  echo TapListener >classes/test/META-INF/services/org.junit.platform.launcher.TestExecutionListener
  cp -r src/main/resources/. classes/main
  cp -r src/test/resources/property-file-initialisation src/test/resources/logback-test.xml classes/test
  ;;
run)
  exec java -Dreport="$2" -Drabbitmqctl.bin="$3" -Dbroker.hostname=localhost -Dbroker.port=5672 \
    -Dtest-broker.A.nodename=node -Djunit.jupiter.execution.timeout.testable.method.default=5m \
    -Djunit.jupiter.execution.timeout.thread.mode.default=SEPARATE_THREAD \
    -cp "classes/main:classes/test$jars" org.junit.platform.console.ConsoleLauncher --disable-banner --details=tree \
    --disable-ansi-colors --include-engine=junit-jupiter --include-classname='.*' \
    --exclude-classname=".*\.($NOT_RUN)" --scan-classpath=classes/test
  ;;
esac
