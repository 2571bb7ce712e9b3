// A store over HTTP: what is posted is kept as one small object a byte.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
)

type item struct {
	number int
	text   string
}

func main() {
	var lock sync.Mutex
	store := map[string][]*item{}
	http.HandleFunc("/", func(reply http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		items := make([]*item, 0, len(body))
		for i := range body {
			items = append(items, &item{i, fmt.Sprint("item ", i)})
		}
		lock.Lock()
		defer lock.Unlock()
		store[request.URL.Path] = items
		fmt.Fprint(reply, "kept ", len(store))
	})
	panic(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
