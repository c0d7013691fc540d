package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"os"
	"sync"

	"github.com/quic-go/quic-go/http3"
)

// order is a line of the client's input: a request to be sent at once, beside those that are under way.
type order struct {
	ID      uint64      `json:"id"`
	Method  string      `json:"method"`
	Path    string      `json:"path"`
	Headers [][2]string `json:"headers"`
	Body    []byte      `json:"body"` // base64
}

// outcome is a line of the client's output: the whole response, or why there is none.
type outcome struct {
	ID      uint64      `json:"id"`
	Status  int         `json:"status,omitempty"`
	Headers [][2]string `json:"headers,omitempty"`
	Body    []byte      `json:"body,omitempty"` // base64
	Error   string      `json:"error,omitempty"`
}

// client sends what it is told over one http3.Transport, as the Go runners do: no QUIC settings of its own, and the
// transport dials again whenever it thinks that it should. Told so, it uses net/http's own transport instead, with HTTP/2 or
// HTTP/1.1.
func client(args []string) error {
	var side side
	flags := flag.NewFlagSet("client", flag.ExitOnError)
	side.register(flags)
	version := flags.String("http", "3", "`version` of HTTP: 3, or over TCP 2 or 1.1")
	_ = flags.Parse(args)
	certificate, roots, err := side.load()
	if err != nil {
		return err
	}
	tlsConfig := &tls.Config{
		Certificates: []tls.Certificate{certificate},
		RootCAs:      roots,
		MinVersion:   tls.VersionTLS13,
	}
	httpClient := &http.Client{}
	if *version == "3" {
		transport := &http3.Transport{TLSClientConfig: tlsConfig}
		defer transport.Close()
		httpClient.Transport = transport
	} else {
		httpClient.Transport = &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: *version == "2"}
	}

	var out lines
	var running sync.WaitGroup
	defer running.Wait()
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		var order order
		if err := json.Unmarshal(line, &order); err != nil {
			return err
		}
		running.Go(func() { out.write(exchange(httpClient, side.address, order)) })
	}
}

func exchange(client *http.Client, address string, order order) outcome {
	failed := func(err error) outcome { return outcome{ID: order.ID, Error: err.Error()} }
	request, err := http.NewRequest(order.Method, "https://"+address+order.Path, bytes.NewReader(order.Body))
	if err != nil {
		return failed(err)
	}
	for _, header := range order.Headers {
		request.Header.Add(header[0], header[1])
	}
	response, err := client.Do(request)
	if err != nil {
		return failed(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return failed(err)
	}
	result := outcome{ID: order.ID, Status: response.StatusCode, Body: body}
	for name, values := range response.Header {
		for _, value := range values {
			result.Headers = append(result.Headers, [2]string{name, value})
		}
	}
	return result
}
