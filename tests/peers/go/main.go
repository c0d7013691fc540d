// Peer-go is a second opinion on the wire: a client and a server on quic-go, written from the contract alone.
//
//	peer-go client -address HOST:PORT -ca FILE -cert FILE -key FILE
//	peer-go server -address HOST:PORT -ca FILE -cert FILE -key FILE -jwks FILE -issuer ISSUER -metrics URL -logs URL
//	peer-go relay  -address HOST:PORT -ca FILE -cert FILE -key FILE -jwks FILE -issuer ISSUER -store URL
//
// The first two talk to the test in lines of JSON; see client.go and server.go. The third is what telemetry-bench measures
// the relay beside; see relay.go. They end when their standard input does.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
)

func main() {
	commands := map[string]func([]string) error{"client": client, "server": server, "relay": relaying}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: peer-go client|server|relay FLAGS")
		os.Exit(64)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "peer-go:", err)
		os.Exit(1)
	}
}

// side is what both sides are told.
type side struct {
	address, ca, cert, key string
}

func (s *side) register(flags *flag.FlagSet) {
	flags.StringVar(&s.address, "address", "", "`HOST:PORT` of the server")
	flags.StringVar(&s.ca, "ca", "", "`file` with the cluster's CA, PEM")
	flags.StringVar(&s.cert, "cert", "", "`file` with this side's certificate chain, PEM")
	flags.StringVar(&s.key, "key", "", "`file` with its private key, PEM")
}

func (s *side) load() (tls.Certificate, *x509.CertPool, error) {
	certificate, err := tls.LoadX509KeyPair(s.cert, s.key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	pem, err := os.ReadFile(s.ca)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return tls.Certificate{}, nil, errors.New("there is no certificate in the CA file")
	}
	return certificate, roots, nil
}

// lines writes values as lines of JSON, whole and one at a time.
type lines struct {
	mu sync.Mutex
}

func (l *lines) write(value any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Without a reader the test is over.
	_ = json.NewEncoder(os.Stdout).Encode(value)
}
