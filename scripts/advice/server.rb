# A store over TCP: each connection sends a number, and so many strings are kept.
require "socket"
server = TCPServer.new("127.0.0.1", ARGV[0].to_i)
store = {}
loop do
  client = server.accept
  path = client.gets.to_s.split[1].to_s
  break client.close if path == "/stop"
  while (line = client.gets) && line != "\r\n"; end
  store[path] = (0...600).map { |i| "item #{i} of #{path}" }
  client.write "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"
  client.close
end
