# Counts and sorts words of a log.
use strict;
my (%count, @lines);
while (<>) {
    push @lines, $_ if $. % 4 == 0;
    $count{$_}++ for split;
}
my @sorted = sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count;
print scalar(@sorted), " ", scalar(@lines), " $sorted[0]\n";
