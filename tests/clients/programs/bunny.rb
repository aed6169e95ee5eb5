# Bunny: the basics of AMQP 0-9-1 by Ruby's client.
require "bunny"
require "timeout"

$stdout.sync = true

def check(name)
  puts(Timeout.timeout(20) { yield } ? "ok - #{name}" : "not ok - #{name}")
rescue Exception => e
  warn("#{name}: #{e.class}: #{e.message}")
  puts("not ok - #{name}")
end

connection = Bunny.new("amqp://guest:guest@localhost:5672", automatically_recover: false).start
channel = connection.create_channel
channel.confirm_select
queue = channel.queue("bunny", durable: true, arguments: { "x-max-priority" => 3 })
check("the server says who it is") { connection.server_properties["product"].is_a?(String) }
check("confirms") do
  10.times { |i| queue.publish("message #{i}", persistent: true, headers: { "i" => i, "list" => [1, "two"] }) }
  channel.wait_for_confirms && queue.message_count == 10
end
check("get") do
  info, properties, body = queue.pop(manual_ack: true)
  channel.ack(info.delivery_tag)
  body == "message 0" && properties[:headers] == { "i" => 0, "list" => [1, "two"] } && properties[:delivery_mode] == 2
end
check("consume, with a prefetch count and acks of many") do
  channel.prefetch(3)
  got = Queue.new
  consumer = queue.subscribe(manual_ack: true) { |info, _, body| got << [info.delivery_tag, body] }
  bodies = []
  9.times do |i|
    tag, body = got.pop
    bodies << body
    channel.ack(tag, true) if (i + 1) % 3 == 0
  end
  consumer.cancel
  bodies == (1..9).map { |i| "message #{i}" }
end
check("nack gives back, redelivered") do
  queue.publish("again")
  info, = queue.pop(manual_ack: true)
  channel.nack(info.delivery_tag, false, true)
  info, _, body = queue.pop(manual_ack: true)
  channel.ack(info.delivery_tag)
  info.redelivered? && body == "again"
end
check("priorities") do
  [0, 3, 1].each { |priority| queue.publish(priority.to_s, priority: priority) }
  channel.wait_for_confirms
  3.times.map { queue.pop.last } == %w[3 1 0]
end
%w[direct fanout topic headers].each do |type|
  check("a #{type} exchange") do
    exchange = channel.exchange("bunny.#{type}", type: type, auto_delete: true)
    own = channel.queue("", exclusive: true)
    own.bind(exchange, routing_key: type == "topic" ? "a.*.#" : "a", arguments: { "x-match" => "all", "h" => 1 })
    exchange.publish("yes", routing_key: type == "topic" ? "a.b.c" : "a", headers: { "h" => 1 })
    exchange.publish("no", routing_key: "b", headers: { "h" => 2 }) unless type == "fanout"
    channel.wait_for_confirms
    own.message_count == 1 && own.pop.last == "yes"
  end
end
check("an unroutable message is returned") do
  returned = Queue.new
  exchange = channel.default_exchange
  exchange.on_return { |info, _, body| returned << [info.reply_code, info.reply_text, body] }
  exchange.publish("nowhere", routing_key: "nowhere", mandatory: true)
  returned.pop == [312, "NO_ROUTE", "nowhere"]
end
check("a transaction that is rolled back") do
  other = connection.create_channel
  other.tx_select
  other.default_exchange.publish("never", routing_key: "bunny")
  other.tx_rollback
  other.default_exchange.publish("now", routing_key: "bunny")
  other.tx_commit
  queue.pop.last == "now" && queue.message_count.zero?
end
check("a missing queue closes the channel") do
  connection.create_channel.queue("missing", passive: true)
  false
rescue Bunny::NotFound => e
  e.message == "NOT_FOUND - no queue 'missing' in vhost '/'"
end
check("another declaration is not equivalent") do
  connection.create_channel.queue("bunny", durable: false)
  false
rescue Bunny::PreconditionFailed => e
  e.message.include?("inequivalent arg 'durable' for queue 'bunny' in vhost '/': received 'false' but current is 'true'")
end
check("purge and delete say how many") do
  3.times { queue.publish("x") }
  channel.wait_for_confirms
  channel.queue_purge("bunny").message_count == 3 && channel.queue_delete("bunny").message_count.zero?
end
check("the connection closes") { connection.close; connection.closed? }
