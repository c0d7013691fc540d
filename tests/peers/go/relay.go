package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

const (
	// An idle connection to the store is kept for each request that may be under way.
	idleToStore    = 512
	storeBuffer    = 64 << 10
	copyBuffer     = 64 << 10
	maxHeaderBytes = 32 << 10
)

// relaying is what this relay is measured beside: the same contract by the usual means, quic-go, net/http and golang-jwt. A
// client certificate is required, the token is verified on each request and must name the certificate's runner, the
// length must be announced and is bounded, the store's connections are kept, and what is stored names the runner.
func relaying(args []string) error {
	var side side
	var jwks, issuer, store string
	flags := flag.NewFlagSet("relay", flag.ExitOnError)
	side.register(flags)
	flags.StringVar(&jwks, "jwks", "", "`file` with the public keys of tokens, JWKS")
	flags.StringVar(&issuer, "issuer", "", "issuer of tokens")
	flags.StringVar(&store, "store", "", "`URL` of VictoriaMetrics")
	_ = flags.Parse(args)
	certificate, roots, err := side.load()
	if err != nil {
		return err
	}
	tokens, err := newTokens(jwks, issuer)
	if err != nil {
		return err
	}

	mux := http.NewServeMux()
	mux.Handle("POST /_telemetry/metrics/api/v1/import/prometheus", newForwarder(tokens, store+"/api/v1/import/prometheus"))
	return side.serve(&lines{}, &http3.Server{
		Handler: mux,
		TLSConfig: http3.ConfigureTLSConfig(&tls.Config{
			Certificates:           []tls.Certificate{certificate},
			ClientCAs:              roots,
			ClientAuth:             tls.RequireAndVerifyClientCert,
			MinVersion:             tls.VersionTLS13,
			SessionTicketsDisabled: true,
		}),
		QUICConfig:     &quic.Config{MaxIdleTimeout: 30 * time.Second, MaxIncomingStreams: 100},
		MaxHeaderBytes: maxHeaderBytes,
	})
}

// forwarder sends accepted batches to one store.
type forwarder struct {
	tokens  *tokens
	target  *url.URL
	client  *http.Client
	buffers sync.Pool
}

func newForwarder(tokens *tokens, target string) *forwarder {
	parsed, err := url.Parse(target)
	if err != nil {
		panic(err)
	}
	return &forwarder{
		tokens: tokens,
		target: parsed,
		client: &http.Client{
			Timeout: forwardTimeout,
			Transport: &http.Transport{
				DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
				MaxIdleConns:        idleToStore,
				MaxIdleConnsPerHost: idleToStore,
				IdleConnTimeout:     90 * time.Second,
				DisableCompression:  true,
				WriteBufferSize:     storeBuffer,
			},
		},
		buffers: sync.Pool{New: func() any { return new([copyBuffer]byte) }},
	}
}

func (f *forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	runner, ok := runnerOf(r.TLS)
	if !ok {
		http.Error(w, "the certificate names no runner", http.StatusForbidden)
		return
	}
	values := r.Header.Values(tokenHeader)
	if len(values) != 1 {
		http.Error(w, "one workload token is required", http.StatusUnauthorized)
		return
	}
	named, err := f.tokens.verify(values[0])
	if err != nil {
		http.Error(w, "invalid workload token", http.StatusUnauthorized)
		return
	}
	if named != runner {
		http.Error(w, "the token names another runner", http.StatusForbidden)
		return
	}
	switch {
	case r.URL.RawQuery != "":
		http.Error(w, "no query is allowed", http.StatusBadRequest)
		return
	case r.ContentLength < 0:
		http.Error(w, "the length is required", http.StatusLengthRequired)
		return
	case r.ContentLength > maxIngestBytes:
		http.Error(w, "the body is too large", http.StatusRequestEntityTooLarge)
		return
	}
	status, err := f.forward(w, r, runner)
	if err != nil {
		http.Error(w, "forwarding telemetry failed", status)
		return
	}
	w.WriteHeader(status)
}

func (f *forwarder) forward(w http.ResponseWriter, r *http.Request, runner string) (int, error) {
	target := *f.target
	target.RawQuery = "extra_label=miren_runner%3D" + url.QueryEscape(runner)
	request := &http.Request{
		Method:        http.MethodPost,
		URL:           &target,
		Host:          target.Host,
		Header:        http.Header{"Content-Type": {"text/plain"}},
		Body:          http.MaxBytesReader(w, r.Body, maxIngestBytes),
		ContentLength: r.ContentLength,
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" {
		request.Header.Set("Content-Encoding", encoding)
	}
	response, err := f.client.Do(request.WithContext(r.Context()))
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return http.StatusGatewayTimeout, err
		}
		return http.StatusServiceUnavailable, err
	}
	defer response.Body.Close()
	buffer := f.buffers.Get().(*[copyBuffer]byte)
	defer f.buffers.Put(buffer)
	if _, err := io.CopyBuffer(io.Discard, response.Body, buffer[:]); err != nil {
		return http.StatusBadGateway, err
	}
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusNoContent {
		return http.StatusBadGateway, errors.New("the store refused it")
	}
	return response.StatusCode, nil
}

// runnerOf reads the runner from what the handshake proved.
func runnerOf(state *tls.ConnectionState) (string, bool) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return "", false
	}
	leaf := state.PeerCertificates[0]
	for _, uri := range leaf.URIs {
		if uri.Scheme == "spiffe" {
			return strings.CutPrefix(uri.Path, "/runner/")
		}
	}
	return strings.CutPrefix(leaf.Subject.CommonName, "runner-")
}
