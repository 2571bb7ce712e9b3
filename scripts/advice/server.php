<?php
// Each request builds and sorts an array.
$items = [];
for ($i = 0; $i < 60000; $i++) {
    $items["key" . ($i * 7919 % 100003)] = ["number" => $i, "text" => "item $i"];
}
ksort($items);
echo count($items);
