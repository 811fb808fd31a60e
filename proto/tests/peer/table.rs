//! Every message that the peer has and we declare, by package: `k8s.io.` and the module's path are its protobuf package.

use prost::Message;

use super::Peer;

macro_rules! peers {
    ($($($module:ident)::+ { $($names:tt)* })*) => {
        pub fn peers() -> Vec<Peer> {
            let mut peers = Vec::new();
            $({
                use k8s_pb::$($module)::+ as package;
                package!(peers, stringify!($($module)::+), package, $($names)*);
            })*
            peers
        }
    };
}

macro_rules! package {
    ($peers:ident, $path:expr, $package:ident, $($name:ident)*) => {
        $($peers.push(Peer {
            package: $path,
            name: stringify!($name),
            exchange: |bytes| {
                let message = $package::$name::decode(bytes)?;
                Ok((message.encode_to_vec(), format!("{message:?}")))
            },
        });)*
    };
}

peers! {
    api::admission::v1 {
        AdmissionRequest AdmissionResponse AdmissionReview
    }
    api::admissionregistration::v1 {
        AuditAnnotation ExpressionWarning MatchCondition MatchResources MutatingWebhook
        MutatingWebhookConfiguration MutatingWebhookConfigurationList NamedRuleWithOperations ParamKind ParamRef
        Rule RuleWithOperations ServiceReference TypeChecking ValidatingAdmissionPolicy
        ValidatingAdmissionPolicyBinding ValidatingAdmissionPolicyBindingList
        ValidatingAdmissionPolicyBindingSpec ValidatingAdmissionPolicyList ValidatingAdmissionPolicySpec
        ValidatingAdmissionPolicyStatus ValidatingWebhook ValidatingWebhookConfiguration
        ValidatingWebhookConfigurationList Validation Variable WebhookClientConfig
    }
    api::admissionregistration::v1alpha1 {
        ApplyConfiguration AuditAnnotation ExpressionWarning JsonPatch MatchCondition MatchResources
        MutatingAdmissionPolicy MutatingAdmissionPolicyBinding MutatingAdmissionPolicyBindingList
        MutatingAdmissionPolicyBindingSpec MutatingAdmissionPolicyList MutatingAdmissionPolicySpec Mutation
        NamedRuleWithOperations ParamKind ParamRef TypeChecking ValidatingAdmissionPolicy
        ValidatingAdmissionPolicyBinding ValidatingAdmissionPolicyBindingList
        ValidatingAdmissionPolicyBindingSpec ValidatingAdmissionPolicyList ValidatingAdmissionPolicySpec
        ValidatingAdmissionPolicyStatus Validation Variable
    }
    api::admissionregistration::v1beta1 {
        ApplyConfiguration AuditAnnotation ExpressionWarning JsonPatch MatchCondition MatchResources
        MutatingAdmissionPolicy MutatingAdmissionPolicyBinding MutatingAdmissionPolicyBindingList
        MutatingAdmissionPolicyBindingSpec MutatingAdmissionPolicyList MutatingAdmissionPolicySpec
        MutatingWebhook MutatingWebhookConfiguration MutatingWebhookConfigurationList Mutation
        NamedRuleWithOperations ParamKind ParamRef ServiceReference TypeChecking ValidatingAdmissionPolicy
        ValidatingAdmissionPolicyBinding ValidatingAdmissionPolicyBindingList
        ValidatingAdmissionPolicyBindingSpec ValidatingAdmissionPolicyList ValidatingAdmissionPolicySpec
        ValidatingAdmissionPolicyStatus ValidatingWebhook ValidatingWebhookConfiguration
        ValidatingWebhookConfigurationList Validation Variable WebhookClientConfig
    }
    api::apidiscovery::v2 {
        APIGroupDiscovery APIGroupDiscoveryList APIResourceDiscovery APISubresourceDiscovery APIVersionDiscovery
    }
    api::apiserverinternal::v1alpha1 {
        ServerStorageVersion StorageVersion StorageVersionCondition StorageVersionList StorageVersionSpec
        StorageVersionStatus
    }
    api::apps::v1 {
        ControllerRevision ControllerRevisionList DaemonSet DaemonSetCondition DaemonSetList DaemonSetSpec
        DaemonSetStatus DaemonSetUpdateStrategy Deployment DeploymentCondition DeploymentList DeploymentSpec
        DeploymentStatus DeploymentStrategy ReplicaSet ReplicaSetCondition ReplicaSetList ReplicaSetSpec
        ReplicaSetStatus RollingUpdateDaemonSet RollingUpdateDeployment RollingUpdateStatefulSetStrategy
        StatefulSet StatefulSetCondition StatefulSetList StatefulSetOrdinals
        StatefulSetPersistentVolumeClaimRetentionPolicy StatefulSetSpec StatefulSetStatus
        StatefulSetUpdateStrategy
    }
    api::authentication::v1 {
        BoundObjectReference SelfSubjectReview SelfSubjectReviewStatus TokenRequest TokenRequestSpec
        TokenRequestStatus TokenReview TokenReviewSpec TokenReviewStatus UserInfo
    }
    api::authorization::v1 {
        FieldSelectorAttributes LabelSelectorAttributes LocalSubjectAccessReview NonResourceAttributes
        NonResourceRule ResourceAttributes ResourceRule SelfSubjectAccessReview SelfSubjectAccessReviewSpec
        SelfSubjectRulesReview SelfSubjectRulesReviewSpec SubjectAccessReview SubjectAccessReviewSpec
        SubjectAccessReviewStatus SubjectRulesReviewStatus
    }
    api::autoscaling::v1 {
        ContainerResourceMetricSource ContainerResourceMetricStatus CrossVersionObjectReference
        ExternalMetricSource ExternalMetricStatus HorizontalPodAutoscaler HorizontalPodAutoscalerCondition
        HorizontalPodAutoscalerList HorizontalPodAutoscalerSpec HorizontalPodAutoscalerStatus MetricSpec
        MetricStatus ObjectMetricSource ObjectMetricStatus PodsMetricSource PodsMetricStatus
        ResourceMetricSource ResourceMetricStatus Scale ScaleSpec ScaleStatus
    }
    api::autoscaling::v2 {
        ContainerResourceMetricSource ContainerResourceMetricStatus CrossVersionObjectReference
        ExternalMetricSource ExternalMetricStatus HpaScalingPolicy HpaScalingRules HorizontalPodAutoscaler
        HorizontalPodAutoscalerBehavior HorizontalPodAutoscalerCondition HorizontalPodAutoscalerList
        HorizontalPodAutoscalerSpec HorizontalPodAutoscalerStatus MetricIdentifier MetricSpec MetricStatus
        MetricTarget MetricValueStatus ObjectMetricSource ObjectMetricStatus PodsMetricSource PodsMetricStatus
        ResourceMetricSource ResourceMetricStatus
    }
    api::batch::v1 {
        CronJob CronJobList CronJobSpec CronJobStatus Job JobCondition JobList JobSpec JobStatus JobTemplateSpec
        PodFailurePolicy PodFailurePolicyOnExitCodesRequirement PodFailurePolicyOnPodConditionsPattern
        PodFailurePolicyRule SuccessPolicy SuccessPolicyRule UncountedTerminatedPods
    }
    api::certificates::v1 {
        CertificateSigningRequest CertificateSigningRequestCondition CertificateSigningRequestList
        CertificateSigningRequestSpec CertificateSigningRequestStatus
    }
    api::certificates::v1alpha1 {
        ClusterTrustBundle ClusterTrustBundleList ClusterTrustBundleSpec
    }
    api::certificates::v1beta1 {
        CertificateSigningRequest CertificateSigningRequestCondition CertificateSigningRequestList
        CertificateSigningRequestSpec CertificateSigningRequestStatus ClusterTrustBundle ClusterTrustBundleList
        ClusterTrustBundleSpec PodCertificateRequest PodCertificateRequestList PodCertificateRequestSpec
        PodCertificateRequestStatus
    }
    api::coordination::v1 {
        Lease LeaseList LeaseSpec
    }
    api::coordination::v1alpha2 {
        LeaseCandidate LeaseCandidateList LeaseCandidateSpec
    }
    api::coordination::v1beta1 {
        Lease LeaseCandidate LeaseCandidateList LeaseCandidateSpec LeaseList LeaseSpec
    }
    api::core::v1 {
        AwsElasticBlockStoreVolumeSource Affinity AppArmorProfile AttachedVolume AvoidPods AzureDiskVolumeSource
        AzureFilePersistentVolumeSource AzureFileVolumeSource Binding CSIPersistentVolumeSource CSIVolumeSource
        Capabilities CephFsPersistentVolumeSource CephFsVolumeSource CinderPersistentVolumeSource
        CinderVolumeSource ClientIpConfig ClusterTrustBundleProjection ComponentCondition ComponentStatus
        ComponentStatusList ConfigMap ConfigMapEnvSource ConfigMapKeySelector ConfigMapList
        ConfigMapNodeConfigSource ConfigMapProjection ConfigMapVolumeSource Container
        ContainerExtendedResourceRequest ContainerImage ContainerPort ContainerResizePolicy ContainerRestartRule
        ContainerRestartRuleOnExitCodes ContainerState ContainerStateRunning ContainerStateTerminated
        ContainerStateWaiting ContainerStatus ContainerUser DaemonEndpoint DownwardAPIProjection
        DownwardAPIVolumeFile DownwardAPIVolumeSource EmptyDirVolumeSource EndpointAddress EndpointPort
        EndpointSubset Endpoints EndpointsList EnvFromSource EnvVar EnvVarSource EphemeralContainer
        EphemeralContainerCommon EphemeralVolumeSource Event EventList EventSeries EventSource ExecAction
        FcVolumeSource FileKeySelector FlexPersistentVolumeSource FlexVolumeSource FlockerVolumeSource
        GcePersistentDiskVolumeSource GrpcAction GitRepoVolumeSource GlusterfsPersistentVolumeSource
        GlusterfsVolumeSource HttpGetAction HttpHeader HostAlias HostIp HostPathVolumeSource
        IscsiPersistentVolumeSource IscsiVolumeSource ImageVolumeSource KeyToPath Lifecycle LifecycleHandler
        LimitRange LimitRangeItem LimitRangeList LimitRangeSpec LinuxContainerUser List LoadBalancerIngress
        LoadBalancerStatus LocalObjectReference LocalVolumeSource ModifyVolumeStatus NfsVolumeSource Namespace
        NamespaceCondition NamespaceList NamespaceSpec NamespaceStatus Node NodeAddress NodeAffinity
        NodeCondition NodeConfigSource NodeConfigStatus NodeDaemonEndpoints NodeFeatures NodeList
        NodeProxyOptions NodeRuntimeHandler NodeRuntimeHandlerFeatures NodeSelector NodeSelectorRequirement
        NodeSelectorTerm NodeSpec NodeStatus NodeSwapStatus NodeSystemInfo ObjectFieldSelector ObjectReference
        PersistentVolume PersistentVolumeClaim PersistentVolumeClaimCondition PersistentVolumeClaimList
        PersistentVolumeClaimSpec PersistentVolumeClaimStatus PersistentVolumeClaimTemplate
        PersistentVolumeClaimVolumeSource PersistentVolumeList PersistentVolumeSource PersistentVolumeSpec
        PersistentVolumeStatus PhotonPersistentDiskVolumeSource Pod PodAffinity PodAffinityTerm PodAntiAffinity
        PodAttachOptions PodCertificateProjection PodCondition PodDnsConfig PodDnsConfigOption PodExecOptions
        PodExtendedResourceClaimStatus PodIp PodList PodLogOptions PodOs PodPortForwardOptions PodProxyOptions
        PodReadinessGate PodResourceClaim PodResourceClaimStatus PodSchedulingGate PodSecurityContext
        PodSignature PodSpec PodStatus PodStatusResult PodTemplate PodTemplateList PodTemplateSpec PortStatus
        PortworxVolumeSource Preconditions PreferAvoidPodsEntry PreferredSchedulingTerm Probe ProbeHandler
        ProjectedVolumeSource QuobyteVolumeSource RbdPersistentVolumeSource RbdVolumeSource RangeAllocation
        ReplicationController ReplicationControllerCondition ReplicationControllerList ReplicationControllerSpec
        ReplicationControllerStatus ResourceClaim ResourceFieldSelector ResourceHealth ResourceQuota
        ResourceQuotaList ResourceQuotaSpec ResourceQuotaStatus ResourceRequirements ResourceStatus
        SeLinuxOptions ScaleIoPersistentVolumeSource ScaleIoVolumeSource ScopeSelector
        ScopedResourceSelectorRequirement SeccompProfile Secret SecretEnvSource SecretKeySelector SecretList
        SecretProjection SecretReference SecretVolumeSource SecurityContext SerializedReference Service
        ServiceAccount ServiceAccountList ServiceAccountTokenProjection ServiceList ServicePort
        ServiceProxyOptions ServiceSpec ServiceStatus SessionAffinityConfig SleepAction
        StorageOsPersistentVolumeSource StorageOsVolumeSource Sysctl TcpSocketAction Taint Toleration
        TopologySelectorLabelRequirement TopologySelectorTerm TopologySpreadConstraint TypedLocalObjectReference
        TypedObjectReference Volume VolumeDevice VolumeMount VolumeMountStatus VolumeNodeAffinity
        VolumeProjection VolumeResourceRequirements VolumeSource VsphereVirtualDiskVolumeSource
        WeightedPodAffinityTerm WindowsSecurityContextOptions
    }
    api::discovery::v1 {
        Endpoint EndpointConditions EndpointHints EndpointPort EndpointSlice EndpointSliceList ForNode ForZone
    }
    api::events::v1 {
        Event EventList EventSeries
    }
    api::flowcontrol::v1 {
        ExemptPriorityLevelConfiguration FlowDistinguisherMethod FlowSchema FlowSchemaCondition FlowSchemaList
        FlowSchemaSpec FlowSchemaStatus GroupSubject LimitResponse LimitedPriorityLevelConfiguration
        NonResourcePolicyRule PolicyRulesWithSubjects PriorityLevelConfiguration
        PriorityLevelConfigurationCondition PriorityLevelConfigurationList PriorityLevelConfigurationReference
        PriorityLevelConfigurationSpec PriorityLevelConfigurationStatus QueuingConfiguration ResourcePolicyRule
        ServiceAccountSubject Subject UserSubject
    }
    api::networking::v1 {
        HttpIngressPath HttpIngressRuleValue IPAddress IPAddressList IPAddressSpec IpBlock Ingress
        IngressBackend IngressClass IngressClassList IngressClassParametersReference IngressClassSpec
        IngressList IngressLoadBalancerIngress IngressLoadBalancerStatus IngressPortStatus IngressRule
        IngressRuleValue IngressServiceBackend IngressSpec IngressStatus IngressTls NetworkPolicy
        NetworkPolicyEgressRule NetworkPolicyIngressRule NetworkPolicyList NetworkPolicyPeer NetworkPolicyPort
        NetworkPolicySpec ParentReference ServiceBackendPort ServiceCIDR ServiceCIDRList ServiceCIDRSpec
        ServiceCIDRStatus
    }
    api::networking::v1beta1 {
        HttpIngressPath HttpIngressRuleValue IPAddress IPAddressList IPAddressSpec Ingress IngressBackend
        IngressClass IngressClassList IngressClassParametersReference IngressClassSpec IngressList
        IngressLoadBalancerIngress IngressLoadBalancerStatus IngressPortStatus IngressRule IngressRuleValue
        IngressSpec IngressStatus IngressTls ParentReference ServiceCIDR ServiceCIDRList ServiceCIDRSpec
        ServiceCIDRStatus
    }
    api::node::v1 {
        Overhead RuntimeClass RuntimeClassList Scheduling
    }
    api::policy::v1 {
        Eviction PodDisruptionBudget PodDisruptionBudgetList PodDisruptionBudgetSpec PodDisruptionBudgetStatus
    }
    api::rbac::v1 {
        AggregationRule ClusterRole ClusterRoleBinding ClusterRoleBindingList ClusterRoleList PolicyRule Role
        RoleBinding RoleBindingList RoleList RoleRef Subject
    }
    api::resource::v1 {
        AllocatedDeviceStatus AllocationResult CelDeviceSelector CapacityRequestPolicy
        CapacityRequestPolicyRange CapacityRequirements Counter CounterSet Device DeviceAllocationConfiguration
        DeviceAllocationResult DeviceAttribute DeviceCapacity DeviceClaim DeviceClaimConfiguration DeviceClass
        DeviceClassConfiguration DeviceClassList DeviceClassSpec DeviceConfiguration DeviceConstraint
        DeviceCounterConsumption DeviceRequest DeviceRequestAllocationResult DeviceSelector DeviceSubRequest
        DeviceTaint DeviceToleration ExactDeviceRequest NetworkDeviceData OpaqueDeviceConfiguration
        ResourceClaim ResourceClaimConsumerReference ResourceClaimList ResourceClaimSpec ResourceClaimStatus
        ResourceClaimTemplate ResourceClaimTemplateList ResourceClaimTemplateSpec ResourcePool ResourceSlice
        ResourceSliceList ResourceSliceSpec
    }
    api::resource::v1alpha3 {
        CelDeviceSelector DeviceSelector DeviceTaint DeviceTaintRule DeviceTaintRuleList DeviceTaintRuleSpec
        DeviceTaintRuleStatus DeviceTaintSelector
    }
    api::resource::v1beta1 {
        AllocatedDeviceStatus AllocationResult BasicDevice CelDeviceSelector CapacityRequestPolicy
        CapacityRequestPolicyRange CapacityRequirements Counter CounterSet Device DeviceAllocationConfiguration
        DeviceAllocationResult DeviceAttribute DeviceCapacity DeviceClaim DeviceClaimConfiguration DeviceClass
        DeviceClassConfiguration DeviceClassList DeviceClassSpec DeviceConfiguration DeviceConstraint
        DeviceCounterConsumption DeviceRequest DeviceRequestAllocationResult DeviceSelector DeviceSubRequest
        DeviceTaint DeviceToleration NetworkDeviceData OpaqueDeviceConfiguration ResourceClaim
        ResourceClaimConsumerReference ResourceClaimList ResourceClaimSpec ResourceClaimStatus
        ResourceClaimTemplate ResourceClaimTemplateList ResourceClaimTemplateSpec ResourcePool ResourceSlice
        ResourceSliceList ResourceSliceSpec
    }
    api::resource::v1beta2 {
        AllocatedDeviceStatus AllocationResult CelDeviceSelector CapacityRequestPolicy
        CapacityRequestPolicyRange CapacityRequirements Counter CounterSet Device DeviceAllocationConfiguration
        DeviceAllocationResult DeviceAttribute DeviceCapacity DeviceClaim DeviceClaimConfiguration DeviceClass
        DeviceClassConfiguration DeviceClassList DeviceClassSpec DeviceConfiguration DeviceConstraint
        DeviceCounterConsumption DeviceRequest DeviceRequestAllocationResult DeviceSelector DeviceSubRequest
        DeviceTaint DeviceToleration ExactDeviceRequest NetworkDeviceData OpaqueDeviceConfiguration
        ResourceClaim ResourceClaimConsumerReference ResourceClaimList ResourceClaimSpec ResourceClaimStatus
        ResourceClaimTemplate ResourceClaimTemplateList ResourceClaimTemplateSpec ResourcePool ResourceSlice
        ResourceSliceList ResourceSliceSpec
    }
    api::scheduling::v1 {
        PriorityClass PriorityClassList
    }
    api::storage::v1 {
        CSIDriver CSIDriverList CSIDriverSpec CSINode CSINodeDriver CSINodeList CSINodeSpec CSIStorageCapacity
        CSIStorageCapacityList StorageClass StorageClassList TokenRequest VolumeAttachment VolumeAttachmentList
        VolumeAttachmentSource VolumeAttachmentSpec VolumeAttachmentStatus VolumeAttributesClass
        VolumeAttributesClassList VolumeError VolumeNodeResources
    }
    api::storage::v1beta1 {
        CSIDriver CSIDriverList CSIDriverSpec CSINode CSINodeDriver CSINodeList CSINodeSpec CSIStorageCapacity
        CSIStorageCapacityList StorageClass StorageClassList TokenRequest VolumeAttachment VolumeAttachmentList
        VolumeAttachmentSource VolumeAttachmentSpec VolumeAttachmentStatus VolumeAttributesClass
        VolumeAttributesClassList VolumeError VolumeNodeResources
    }
    api::storagemigration::v1beta1 {
        StorageVersionMigration StorageVersionMigrationList StorageVersionMigrationSpec
        StorageVersionMigrationStatus
    }
    apiextensions_apiserver::pkg::apis::apiextensions::v1 {
        ConversionRequest ConversionResponse ConversionReview CustomResourceColumnDefinition
        CustomResourceConversion CustomResourceDefinition CustomResourceDefinitionCondition
        CustomResourceDefinitionList CustomResourceDefinitionNames CustomResourceDefinitionSpec
        CustomResourceDefinitionStatus CustomResourceDefinitionVersion CustomResourceSubresourceScale
        CustomResourceSubresourceStatus CustomResourceSubresources CustomResourceValidation
        ExternalDocumentation JsonSchemaProps SelectableField ServiceReference ValidationRule
        WebhookClientConfig WebhookConversion
    }
    apimachinery::pkg::api::resource {
        QuantityValue
    }
    apimachinery::pkg::apis::meta::v1 {
        APIGroup APIGroupList APIResource APIResourceList APIVersions ApplyOptions Condition CreateOptions
        DeleteOptions FieldSelectorRequirement GetOptions GroupKind GroupResource GroupVersion
        GroupVersionForDiscovery GroupVersionKind GroupVersionResource LabelSelector LabelSelectorRequirement
        List ListMeta ListOptions ManagedFieldsEntry ObjectMeta OwnerReference PartialObjectMetadata
        PartialObjectMetadataList Patch PatchOptions Preconditions RootPaths ServerAddressByClientCIDR Status
        StatusCause StatusDetails TableOptions Timestamp TypeMeta UpdateOptions WatchEvent
    }
    apimachinery::pkg::apis::meta::v1beta1 {
        PartialObjectMetadataList
    }
    apimachinery::pkg::runtime {
        TypeMeta
    }
    kube_aggregator::pkg::apis::apiregistration::v1 {
        APIService APIServiceCondition APIServiceList APIServiceSpec APIServiceStatus ServiceReference
    }
    metrics::pkg::apis::metrics::v1beta1 {
        ContainerMetrics NodeMetrics NodeMetricsList PodMetrics PodMetricsList
    }
}
