// The CloudEvents SDK for Go as a sender and as a sink: sends events to a gateway, and tells what comes back.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func told(request *http.Request) map[string]any {
	event, err := cehttp.NewEventFromHTTPRequest(request)
	check(err)
	found := map[string]any{
		"structured": strings.HasPrefix(request.Header.Get("content-type"), "application/cloudevents"),
		"id":         event.ID(), "type": event.Type(), "source": event.Source(), "subject": event.Subject(),
		"time": event.Time().Format(time.RFC3339Nano), "colour": event.Extensions()["colour"],
		"datacontenttype": event.DataContentType(),
	}
	if event.DataContentType() == "application/json" {
		var data any
		check(json.Unmarshal(event.Data(), &data))
		found["data"] = data
	} else {
		found["data"] = base64.StdEncoding.EncodeToString(event.Data())
	}
	return found
}

func main() {
	url, subject := os.Args[1], os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	check(err)
	var lock sync.Mutex
	came := []map[string]any{}
	done := make(chan bool)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	go http.Serve(listener, http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		if request.Method == "OPTIONS" {
			response.Header().Set("WebHook-Allowed-Origin", "*")
			return
		}
		found := told(request)
		response.WriteHeader(204)
		lock.Lock()
		defer lock.Unlock()
		came = append(came, found)
		if len(came) == count {
			close(done)
		}
	}))
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	check(err)

	client, err := cloudevents.NewClientHTTP(cloudevents.WithTarget(url + "/events"))
	check(err)
	send := func(ctx context.Context, id string, kind string, data any) {
		event := cloudevents.NewEvent()
		event.SetID(id)
		event.SetType("com.example.sdk")
		event.SetSource("/sdk")
		event.SetSubject(subject)
		event.SetTime(time.Date(2026, 11, 23, 2, 45, 0, 123_000_000, time.UTC))
		event.SetExtension("colour", "red")
		check(event.SetData(kind, data))
		if result := client.Send(ctx, event); !cloudevents.IsACK(result) {
			check(result)
		}
	}
	binary := cloudevents.WithEncodingBinary(context.Background())
	structured := cloudevents.WithEncodingStructured(context.Background())
	send(binary, "1", cloudevents.ApplicationJSON, map[string]any{"n": 1})
	send(structured, "2", cloudevents.ApplicationJSON, map[string]any{"n": 2})
	send(binary, "3", "application/octet-stream", []byte{0, 255, 1})
	<-done
	check(json.NewEncoder(os.Stdout).Encode(came))
}
