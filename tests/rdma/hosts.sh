# In the guest, as its process 1: makes three hosts, runs the command, switches off.
#
# Host i: network device h<i> on a switch (br0, port p<i>, MTU 9000), address 10.77.0.<i>, RDMA device rxe<i>, and user
# 7700+<i>. rxe of Linux 6.1 works in the first network namespace only, so that all hosts are there. What one says
# to another leaves by its own device and comes in by the other's because of these rules, of which the first that fits
# counts:
#   - by address: a socket that is bound to host i's address, and the packets of rxe<i>, are host i's;
#   - by user: so are the sockets of user 7700+i, bound or not;
#   - whoever else speaks to host i does so as the next host.
# To BytePS a machine is a running kernel and a network namespace, so that they would be one. What lab.py runs on host i
# sees /run/machines/<i> for the kernel's boot id.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
cd /run/guest
. ./settings
{
  hostname guest
  {
    echo "rule add pref 1000 lookup local"
    echo "rule del pref 0"
    echo "link set lo up"
    echo "link add br0 type bridge"
    echo "link set br0 addrgenmode none"
    echo "link set br0 mtu 9000 arp off up" # it would answer for the hosts otherwise
    for i in $(seq "$HOSTS"); do
      own=10.77.0.$i all=10.77.0.0/24 table=$((100 + i)) next=$((101 + i % HOSTS)) user=$((7700 + i))
      echo "link add h$i mtu 9000 address 02:77:00:00:00:0$i type veth peer name p$i mtu 9000"
      echo "link set h$i addrgenmode none"
      echo "link set p$i addrgenmode none"
      echo "link set p$i master br0 up"
      echo "addr add $own/24 dev h$i"
      echo "link set h$i up"
      echo "route add $all dev h$i src $own table $table"
      echo "rule add pref 10 from $own to $own lookup local"
      echo "rule add pref 20 from $own to $all iif lo lookup $table"
      echo "rule add pref 30 uidrange $user-$user to $own lookup local"
      echo "rule add pref 40 uidrange $user-$user to $all iif lo lookup $table"
      echo "rule add pref 50 to $own iif lo lookup $next"
    done
  } | ip -batch -
  echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
  for i in $(seq "$HOSTS"); do
    for setting in accept_local=1 rp_filter=0 arp_ignore=1 arp_announce=2; do
      echo "${setting#*=}" >"/proc/sys/net/ipv4/conf/h$i/${setting%=*}"
    done
    echo "link add rxe$i type rxe netdev h$i"
  done | rdma -b -
  mkdir /run/machines
  for i in $(seq "$HOSTS"); do cat /proc/sys/kernel/random/uuid >"/run/machines/$i"; done
  # rxe works in soft interrupts, which programs that poll would starve for whole ticks where processors are few.
  for pid in $(pgrep ksoftirqd); do chrt -f -p 10 "$pid"; done
  ulimit -l unlimited
} >setup.log 2>&1
cut -d' ' -f1 /proc/uptime >ready
timeout -k 5 "$LIMIT_S" bash ./command >output 2>&1 </dev/null
echo $? >code
dmesg >kernel.log
sync
echo o >/proc/sysrq-trigger
sleep 60
