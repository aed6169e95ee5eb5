// Makes each named queue that amqplib declares a quorum queue: NODE_OPTIONS="--require amqplib_quorum.js", in its
// directory.

const place = require.resolve(require('path').resolve('lib/api_args'));
const args = require(place);

function assertQueue(queue, options) {
  const fields = args.assertQueue(queue, options);
  if (!queue) return fields;
  fields.arguments['x-queue-type'] = 'quorum';
  return { ...fields, durable: true, exclusive: false, autoDelete: false };
}

require.cache[place].exports = { ...args, assertQueue };
