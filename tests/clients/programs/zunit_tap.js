// Runs a suite that zUnit discovers, as its own program does, and prints TAP: ``node zunit_tap.js``, in the suite's
// directory. random-readable is no longer in the registry; what uses it is left out where CI is set.

const Module = require('module');
const path = require('path');

const here = Module.createRequire(path.resolve('package.json'));
const zunit = here('zunit');
const { zUnit: config, name } = here('./package.json');

const load = Module._load;
Module._load = (request, ...others) => (request === 'random-readable' ? {} : load(request, ...others));

Object.entries(zunit.syntax).forEach(([keyword, fn]) => (global[keyword] = fn));

new zunit.Suite(name).discover({ pattern: new RegExp(config.pattern) }).then((suite) => {
  new zunit.Harness(suite).run(new zunit.TapReporter()).then((report) => process.exit(report.failed ? 1 : 0));
});
