<?php
// php-amqplib: the basics of AMQP 0-9-1 by PHP's client.
spl_autoload_register(function (string $class): void {
    $file = '/usr/share/php/' . str_replace('\\', '/', $class) . '.php';
    if (is_file($file)) {
        require $file;
    }
});

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPProtocolChannelException;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

function check(string $name, callable $works): void
{
    try {
        $worked = $works();
    } catch (Throwable $error) {
        fwrite(STDERR, "$name: $error\n");
        $worked = false;
    }
    echo $worked ? "ok - $name\n" : "not ok - $name\n";
}

$connection = new AMQPStreamConnection('localhost', 5672, 'guest', 'guest', '/');
$channel = $connection->channel();
$channel->queue_declare('php', false, true, false, false, false, new AMQPTable(['x-max-length' => 100]));
check('confirms', function () use ($channel) {
    $acked = 0;
    $channel->set_ack_handler(function () use (&$acked) {
        $acked++;
    });
    $channel->confirm_select();
    for ($i = 0; $i < 10; $i++) {
        $headers = new AMQPTable(['i' => $i, 'list' => [1, 'two', true]]);
        $channel->basic_publish(new AMQPMessage("message $i", ['delivery_mode' => 2, 'application_headers' => $headers]), '', 'php');
    }
    $channel->wait_for_pending_acks(10);
    return $acked === 10;
});
check('get', function () use ($channel) {
    $message = $channel->basic_get('php');
    $message->ack();
    $headers = $message->get('application_headers')->getNativeData();
    return $message->body === 'message 0' && $headers === ['i' => 0, 'list' => [1, 'two', true]] && $message->getMessageCount() === 9;
});
check('consume, with a prefetch count', function () use ($channel) {
    $bodies = [];
    $channel->basic_qos(0, 2, false);
    $channel->basic_consume('php', 'tag', false, false, false, false, function ($message) use (&$bodies) {
        $bodies[] = $message->body;
        $message->ack();
    });
    while (count($bodies) < 9) {
        $channel->wait(null, false, 10);
    }
    $channel->basic_cancel('tag');
    return $bodies === array_map(fn ($i) => "message $i", range(1, 9));
});
foreach (['direct', 'fanout', 'topic', 'headers'] as $type) {
    check("$type exchange", function () use ($channel, $type) {
        $channel->exchange_declare("php.$type", $type, false, false, true);
        [$queue] = $channel->queue_declare('', false, false, true);
        $channel->queue_bind($queue, "php.$type", $type === 'topic' ? 'a.*.#' : 'a', false, new AMQPTable(['x-match' => 'any', 'h' => 1]));
        $yes = new AMQPMessage('yes', ['application_headers' => new AMQPTable(['h' => 1])]);
        $channel->basic_publish($yes, "php.$type", $type === 'topic' ? 'a.b.c' : 'a');
        if ($type !== 'fanout') {
            $channel->basic_publish(new AMQPMessage('no'), "php.$type", 'b');
        }
        $channel->wait_for_pending_acks(10);
        $message = $channel->basic_get($queue, true);
        return $message->body === 'yes' && $message->getMessageCount() === 0;
    });
}
check('an unroutable message is returned', function () use ($channel) {
    $returned = null;
    $channel->set_return_listener(function (...$all) use (&$returned) {
        $returned = array_slice($all, 0, 4);
    });
    $channel->basic_publish(new AMQPMessage('nowhere'), '', 'nowhere', true);
    $channel->wait_for_pending_acks_returns(10);
    return $returned === [312, 'NO_ROUTE', '', 'nowhere'];
});
check('a large body', function () use ($channel) {
    $body = str_repeat('x', 1000000);
    $channel->basic_publish(new AMQPMessage($body), '', 'php');
    $channel->wait_for_pending_acks(10);
    return $channel->basic_get('php', true)->body === $body;
});
check('a missing queue closes the channel', function () use ($connection) {
    try {
        $connection->channel()->queue_declare('missing', true);
    } catch (AMQPProtocolChannelException $error) {
        return $error->amqp_reply_code === 404 && $error->amqp_reply_text === "NOT_FOUND - no queue 'missing' in vhost '/'";
    }
    return false;
});
check('a transaction', function () use ($connection) {
    $channel = $connection->channel();
    $channel->tx_select();
    $channel->basic_publish(new AMQPMessage('never'), '', 'php');
    $channel->tx_rollback();
    $channel->basic_publish(new AMQPMessage('now'), '', 'php');
    $channel->tx_commit();
    return $channel->basic_get('php', true)->body === 'now' && $channel->basic_get('php', true) === null;
});
check('purge and delete say how many', function () use ($channel) {
    $channel->basic_publish(new AMQPMessage('x'), '', 'php');
    $channel->wait_for_pending_acks(10);
    return $channel->queue_purge('php') === 1 && $channel->queue_delete('php') === 0;
});
check('the connection closes', function () use ($connection) {
    $connection->close();
    return !$connection->isConnected();
});
