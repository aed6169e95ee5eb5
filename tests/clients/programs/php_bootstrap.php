<?php
// What php-amqplib's tests load before they run: the installed library, and their own classes by their namespace.
// ``phpunit --bootstrap php_bootstrap.php``, in the tests' repository.

require_once '/usr/share/php/PhpAmqpLib/autoload.php';

spl_autoload_register(function (string $class): void {
    $prefix = 'PhpAmqpLib\\Tests\\';
    if (str_starts_with($class, $prefix)) {
        $file = getcwd() . '/tests/' . str_replace('\\', '/', substr($class, strlen($prefix))) . '.php';
        if (is_file($file)) {
            require_once $file;
        }
    }
});

require_once getcwd() . '/tests/config.php';
require_once getcwd() . '/tests/php_compat_71.php';
