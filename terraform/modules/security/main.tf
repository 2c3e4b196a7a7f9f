# Who may talk to whom. Nodes talk to each other; gateways also hear the load balancer, and the load balancer its
# clients. Nothing else has a way in.

resource "aws_security_group" "nodes" {
  #checkov:skip=CKV2_AWS_5:Attached by the launch templates of the module capacity.
  name        = "${var.name}-nodes"
  description = "Every node of the cluster"
  vpc_id      = var.vpc_id
  tags        = { Name = "${var.name}-nodes" }
}

# Ray, engine replicas and gateways listen on free ports (docs/operations.md, Ports), so the range is all that an
# unprivileged process may use. The source is the group itself: no address outside the cluster matches.
resource "aws_vpc_security_group_ingress_rule" "nodes" {
  #checkov:skip=CKV_AWS_25:The source is a security group, and no address.
  security_group_id            = aws_security_group.nodes.id
  description                  = "Ray, replicas and gateways, between nodes"
  referenced_security_group_id = aws_security_group.nodes.id
  ip_protocol                  = "tcp"
  from_port                    = 1024
  to_port                      = 65535
}

resource "aws_vpc_security_group_ingress_rule" "nodes_ssh" {
  #checkov:skip=CKV_AWS_24:The source is a security group, and no address.
  security_group_id            = aws_security_group.nodes.id
  description                  = "SSH from Ray's head, which sets workers up"
  referenced_security_group_id = aws_security_group.head.id
  ip_protocol                  = "tcp"
  from_port                    = 22
  to_port                      = 22
}

resource "aws_vpc_security_group_egress_rule" "nodes" {
  security_group_id            = aws_security_group.nodes.id
  description                  = "Other nodes"
  referenced_security_group_id = aws_security_group.nodes.id
  ip_protocol                  = "tcp"
  from_port                    = 1024
  to_port                      = 65535
}

resource "aws_vpc_security_group_egress_rule" "nodes_apis" {
  security_group_id            = aws_security_group.nodes.id
  description                  = "AWS APIs, through the VPC's endpoints"
  referenced_security_group_id = var.endpoints_security_group_id
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
}

resource "aws_vpc_security_group_egress_rule" "nodes_s3" {
  security_group_id = aws_security_group.nodes.id
  description       = "S3, through the VPC's endpoint"
  prefix_list_id    = var.s3_prefix_list_id
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "nodes_internet" {
  count = var.internet ? 1 : 0

  security_group_id = aws_security_group.nodes.id
  description       = "HTTPS through NAT: model hubs, package indexes"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "peers" {
  for_each = toset(flatten([for peer in values(var.peer_networks) : peer.cidr_blocks if peer.connection_id != null]))

  security_group_id = aws_security_group.nodes.id
  description       = "Endpoints of peers, through a peering connection"
  cidr_ipv4         = each.value
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_security_group" "head" {
  #checkov:skip=CKV2_AWS_5:Attached by the launch template of the head in the module capacity.
  name        = "${var.name}-head"
  description = "Ray's head, besides the nodes' group"
  vpc_id      = var.vpc_id
  tags        = { Name = "${var.name}-head" }
}

resource "aws_vpc_security_group_ingress_rule" "head_ssh" {
  for_each = toset(var.operator_cidrs)

  security_group_id = aws_security_group.head.id
  description       = "SSH from operators (`raylane deploy`, `ray up`)"
  cidr_ipv4         = each.value
  ip_protocol       = "tcp"
  from_port         = 22
  to_port           = 22
}

resource "aws_vpc_security_group_egress_rule" "head_ssh" {
  security_group_id            = aws_security_group.head.id
  description                  = "SSH to the nodes that it sets up"
  referenced_security_group_id = aws_security_group.nodes.id
  ip_protocol                  = "tcp"
  from_port                    = 22
  to_port                      = 22
}

resource "aws_security_group" "gateways" {
  #checkov:skip=CKV2_AWS_5:Attached by the launch templates of gateways in the module capacity.
  name        = "${var.name}-gateways"
  description = "Nodes with a gateway, besides the nodes' group"
  vpc_id      = var.vpc_id
  tags        = { Name = "${var.name}-gateways" }
}

resource "aws_vpc_security_group_ingress_rule" "gateways" {
  security_group_id            = aws_security_group.gateways.id
  description                  = "Clients' requests and health checks, from the load balancer"
  referenced_security_group_id = aws_security_group.endpoint.id
  ip_protocol                  = "tcp"
  from_port                    = var.gateway_port
  to_port                      = var.gateway_port
}

resource "aws_security_group" "endpoint" {
  #checkov:skip=CKV2_AWS_5:Attached by the load balancer in the module endpoint.
  name        = "${var.name}-endpoint"
  description = "The load balancer"
  vpc_id      = var.vpc_id
  tags        = { Name = "${var.name}-endpoint" }
}

resource "aws_vpc_security_group_ingress_rule" "endpoint" {
  for_each = toset(concat(var.client_cidrs, flatten(values(var.peer_networks)[*].cidr_blocks)))

  security_group_id = aws_security_group.endpoint.id
  description       = "Clients and peers, over TLS"
  cidr_ipv4         = each.value
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "endpoint" {
  security_group_id            = aws_security_group.endpoint.id
  description                  = "Gateways"
  referenced_security_group_id = aws_security_group.gateways.id
  ip_protocol                  = "tcp"
  from_port                    = var.gateway_port
  to_port                      = var.gateway_port
}
