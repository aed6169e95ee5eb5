#!/bin/sh
# rabbitmq-c's command-line tools: declare, publish, get, consume, delete, and what they say of errors.
url=amqp://guest:guest@localhost:5672
out=$(mktemp -d)

check() { # name, then a command that has to succeed
    name=$1
    shift
    if "$@" >"$out/stdout" 2>"$out/stderr"; then echo "ok - $name"; else echo "not ok - $name"; cat "$out/stderr" >&2; fi
}

same() { [ "$(cat)" = "$1" ]; }
says() { grep -q "$1"; }

check "a queue is declared" sh -c "amqp-declare-queue -u $url -q tools -d"
check "a message is published and got" sh -c "
    amqp-publish -u $url -r tools -p -C text/plain -b 'from the shell' && amqp-get -u $url -q tools >$out/got"
check "the body is the one that was sent" same "from the shell" <"$out/got"
check "an empty queue gives nothing" sh -c "! amqp-get -u $url -q tools"
check "lines become messages" sh -c "printf 'a\nb\nc\n' | amqp-publish -u $url -r tools -l"
check "a consumer takes as many as it is told, in order" sh -c "
    amqp-consume -u $url -q tools -c 3 -p 1 cat >$out/consumed && printf 'a\nb\nc\n' | tr -d '\n' >$out/expected &&
    tr -d '\n' <$out/consumed | cmp - $out/expected"
check "a consumer with a queue of its own, bound to an exchange" sh -c "
    amqp-consume -u $url -e amq.topic -r 'shell.#' -c 1 cat >$out/topic & consumer=\$!
    for attempt in 1 2 3 4 5 6 7 8 9 10; do
        sleep 0.2; amqp-publish -u $url -e amq.topic -r shell.one -b topical; kill -0 \$consumer 2>/dev/null || break
    done
    wait \$consumer && [ \"\$(cat $out/topic)\" = topical ]"
check "a large body" sh -c "
    head -c 500000 /dev/zero | tr '\0' x | amqp-publish -u $url -r tools && [ \$(amqp-get -u $url -q tools | wc -c) = 500000 ]"
amqp-get -u $url -q missing >"$out/stdout" 2>"$out/missing"
check "a missing queue is not found" says "404, message: NOT_FOUND - no queue 'missing' in vhost '/'" <"$out/missing"
amqp-get -u amqp://guest:wrong@localhost:5672/ -q tools >"$out/stdout" 2>"$out/refused"
check "a wrong password is refused" says "403" <"$out/refused"
check "the queue is deleted" sh -c "amqp-delete-queue -u $url -q tools"
rm -r "$out"
