// check-manifests reads Kubernetes manifests as an API server would, with the types of k8s.io/api and no field that these do
// not have, and looks at what an API server does not: whether names in one manifest lead to something in another.
//
//	check-manifests FILE...
//
// Each fault is a line on standard output, and then it exits with 1.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// workload is a pod template, and who makes pods of it.
type workload struct {
	name     string
	owner    metav1.ObjectMeta
	selector *metav1.LabelSelector
	template corev1.PodTemplateSpec
	claims   []corev1.PersistentVolumeClaim
	service  string
}

type checker struct {
	workloads       []workload
	services        []*corev1.Service
	policies        []*networkingv1.NetworkPolicy
	configMaps      map[string]*corev1.ConfigMap
	serviceAccounts map[string]bool
	faults          []string
}

func main() {
	checker := checker{configMaps: map[string]*corev1.ConfigMap{}, serviceAccounts: map[string]bool{}}
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: check-manifests FILE...")
		os.Exit(64)
	}
	for _, file := range os.Args[1:] {
		checker.read(file)
	}
	checker.checkWorkloads()
	checker.checkServices()
	checker.checkPolicies()
	for _, fault := range checker.faults {
		fmt.Println(fault)
	}
	if len(checker.faults) > 0 {
		os.Exit(1)
	}
}

func (c *checker) fault(format string, arguments ...any) {
	c.faults = append(c.faults, fmt.Sprintf(format, arguments...))
}

// read decodes each document of a file.
func (c *checker) read(file string) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, networkingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			c.fault("%s: %v", file, err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	text, err := os.ReadFile(file)
	if err != nil {
		c.fault("%v", err)
		return
	}
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for number := 1; ; number++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			c.fault("%s: %v", file, err)
			return
		}
		object, kind, err := decoder.Decode(document, nil, nil)
		if err != nil {
			c.fault("%s: document %d: %v", file, number, err)
			continue
		}
		c.take(file, kind.Kind, object)
	}
}

func (c *checker) take(file, kind string, object runtime.Object) {
	meta := object.(metav1.Object)
	if meta.GetName() == "" {
		c.fault("%s: a %s has no name", file, kind)
	}
	switch object := object.(type) {
	case *corev1.ConfigMap:
		c.configMaps[object.Name] = object
	case *corev1.ServiceAccount:
		c.serviceAccounts[object.Name] = true
	case *corev1.Service:
		c.services = append(c.services, object)
	case *networkingv1.NetworkPolicy:
		c.policies = append(c.policies, object)
	case *appsv1.StatefulSet:
		spec := object.Spec
		c.workloads = append(c.workloads, workload{"StatefulSet " + object.Name, object.ObjectMeta, spec.Selector, spec.Template, spec.VolumeClaimTemplates, spec.ServiceName})
	case *appsv1.Deployment:
		spec := object.Spec
		c.workloads = append(c.workloads, workload{"Deployment " + object.Name, object.ObjectMeta, spec.Selector, spec.Template, nil, ""})
	case *appsv1.DaemonSet:
		spec := object.Spec
		c.workloads = append(c.workloads, workload{"DaemonSet " + object.Name, object.ObjectMeta, spec.Selector, spec.Template, nil, ""})
	}
}

func (c *checker) checkWorkloads() {
	for _, workload := range c.workloads {
		if !selects(workload.selector, workload.template.Labels) {
			c.fault("%s: its selector does not match the labels of its template", workload.name)
		}
		if workload.service != "" && !c.hasService(workload.owner.Namespace, workload.service) {
			c.fault("%s: serviceName: there is no Service %s", workload.name, workload.service)
		}
		pod := workload.template.Spec
		if account := pod.ServiceAccountName; account != "" && !c.serviceAccounts[account] {
			c.fault("%s: there is no ServiceAccount %s", workload.name, account)
		}
		volumes := map[string]bool{}
		for _, claim := range workload.claims {
			volumes[claim.Name] = true
		}
		for _, volume := range pod.Volumes {
			volumes[volume.Name] = true
			c.checkConfigMap(workload.name, volume)
		}
		for _, container := range pod.Containers {
			for _, mount := range container.VolumeMounts {
				if !volumes[mount.Name] {
					c.fault("%s: %s mounts %s, which is no volume", workload.name, container.Name, mount.Name)
				}
			}
			for _, probe := range []*corev1.Probe{container.StartupProbe, container.ReadinessProbe, container.LivenessProbe} {
				if probe != nil && probe.HTTPGet != nil && !hasPort(container, probe.HTTPGet.Port, corev1.ProtocolTCP) {
					c.fault("%s: %s is probed at port %s, which it does not have", workload.name, container.Name, probe.HTTPGet.Port.String())
				}
			}
		}
	}
}

func (c *checker) checkConfigMap(name string, volume corev1.Volume) {
	if volume.ConfigMap == nil {
		return
	}
	configMap, found := c.configMaps[volume.ConfigMap.Name]
	if !found {
		c.fault("%s: volume %s: there is no ConfigMap %s", name, volume.Name, volume.ConfigMap.Name)
		return
	}
	for _, item := range volume.ConfigMap.Items {
		if _, found := configMap.Data[item.Key]; !found {
			c.fault("%s: volume %s: ConfigMap %s has no %s", name, volume.Name, configMap.Name, item.Key)
		}
	}
}

func (c *checker) checkServices() {
	for _, service := range c.services {
		matched := c.matching(service.Namespace, labels.SelectorFromSet(service.Spec.Selector))
		if len(matched) == 0 {
			c.fault("Service %s: its selector matches no pod", service.Name)
		}
		for _, workload := range matched {
			for _, port := range service.Spec.Ports {
				target := port.TargetPort
				if target == (intstr.IntOrString{}) {
					target = intstr.FromInt32(port.Port)
				}
				protocol := port.Protocol
				if protocol == "" {
					protocol = corev1.ProtocolTCP
				}
				if !podHasPort(workload, target, protocol) {
					c.fault("Service %s: %s has no port %s over %s", service.Name, workload.name, target.String(), protocol)
				}
			}
		}
	}
}

func (c *checker) checkPolicies() {
	for _, policy := range c.policies {
		selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		if err != nil {
			c.fault("NetworkPolicy %s: %v", policy.Name, err)
			continue
		}
		matched := c.matching(policy.Namespace, selector)
		if len(matched) == 0 {
			c.fault("NetworkPolicy %s: its podSelector matches no pod", policy.Name)
		}
		for _, workload := range matched {
			for _, rule := range policy.Spec.Ingress {
				for _, port := range rule.Ports {
					protocol := corev1.ProtocolTCP
					if port.Protocol != nil {
						protocol = *port.Protocol
					}
					if port.Port != nil && !podHasPort(workload, *port.Port, protocol) {
						c.fault("NetworkPolicy %s: %s has no port %s over %s", policy.Name, workload.name, port.Port.String(), protocol)
					}
				}
			}
		}
	}
}

func (c *checker) hasService(namespace, name string) bool {
	for _, service := range c.services {
		if service.Namespace == namespace && service.Name == name {
			return true
		}
	}
	return false
}

// matching returns the workloads of a namespace whose pods have such labels.
func (c *checker) matching(namespace string, selector labels.Selector) []workload {
	var matched []workload
	for _, workload := range c.workloads {
		if workload.owner.Namespace == namespace && selector.Matches(labels.Set(workload.template.Labels)) {
			matched = append(matched, workload)
		}
	}
	return matched
}

func selects(selector *metav1.LabelSelector, set map[string]string) bool {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(set))
}

func podHasPort(workload workload, target intstr.IntOrString, protocol corev1.Protocol) bool {
	for _, container := range workload.template.Spec.Containers {
		if hasPort(container, target, protocol) {
			return true
		}
	}
	return false
}

func hasPort(container corev1.Container, target intstr.IntOrString, protocol corev1.Protocol) bool {
	for _, port := range container.Ports {
		isIt := port.Name == target.StrVal
		if target.Type == intstr.Int {
			isIt = port.ContainerPort == target.IntVal
		}
		if isIt && (port.Protocol == protocol || port.Protocol == "" && protocol == corev1.ProtocolTCP) {
			return true
		}
	}
	return false
}
